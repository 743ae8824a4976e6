from harness.survival_task import cause_of

ALONE = """From /job:worker/replica:0/task:1:
grpc++: /job:ps/replica:0/task:0 has been silent for 2 s
Additional GRPC error information from remote target /job:ps/replica:0/task:0
\t [[{{node ReadVariableOp_S3}}]]"""
CANCELLED = """From /job:worker/replica:0/task:0:
RecvFromRemoteAsync is cancelled.
\t [[{{node ReadVariableOp_S1}}]]"""
SEVERAL = f"""Graph execution error:

2 root error(s) found.
  (0) CANCELLED: {CANCELLED}
  (1) UNAVAILABLE: {ALONE}
0 successful operations.
2 derived errors ignored."""
IN_A_ROW = f"""Graph execution error:

Detected at node 'Read/ReadVariableOp' defined at (most recent call last):
    File "task.py", line 98, in _step
Node: 'Read/ReadVariableOp'
=====================
UNAVAILABLE: From /job:ps/replica:0/task:0:
grpc++: /job:ps/replica:0/task:0 has been silent for 2 s
CANCELLED: {CANCELLED}
====================="""
SILENT = "grpc++: /job:ps/replica:0/task:0 has been silent for 2 s"


def test_the_cause_of_an_error_is_named_not_what_was_cancelled_for_it() -> None:
    assert cause_of(ALONE) == SILENT
    assert cause_of(SEVERAL) == SILENT
    assert cause_of(IN_A_ROW) == SILENT
    assert cause_of(CANCELLED) == "RecvFromRemoteAsync is cancelled."
    assert cause_of("Socket closed") == "Socket closed"
