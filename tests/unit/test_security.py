"""The statements of SECURITY.md, and the test that pins each of them.

A statement that is worded anew, or a test that is renamed, fails here: see that both still say the
same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIRE = "native/wire/tests"
TOKEN = "tests/integration/semantics/test_token.py"

STATEMENTS: dict[str, list[str]] = {
    # The data port.
    "It listens where gRPC does": [
        f"{TOKEN}::test_the_data_port_is_open_where_grpc_is_unless_an_address_is_named",
        f"{WIRE}/socket_test.cc::without_an_address_the_port_is_open_on_all",
    ],
    "names one address, such as 127.0.0.1": [
        f"{WIRE}/socket_test.cc::an_address_narrows_the_port_down_to_it"
    ],
    "there is a warning if its group or all users may read it": [
        f"{WIRE}/token_test.cc::a_file_that_others_may_read_is_one_line_in_the_log",
        f"{WIRE}/token_test.cc::a_file_that_its_owner_gave_to_our_group_is_no_line_in_the_log",
    ],
    "It has 32 to 1024 characters; space around it is ignored.": [
        f"{WIRE}/token_test.cc::a_token_is_read_from_the_file_or_the_variable_without_space_around_it",
        f"{WIRE}/token_test.cc::a_token_that_is_none_is_refused_without_showing_it",
    ],
    "On Kubernetes it is a Secret": [
        "tests/unit/k8s/test_render.py::"
        "test_every_task_finds_the_token_in_a_file_and_only_a_new_job_brings_a_new_one"
    ],
    # What the token does.
    "both ends prove that they have the token, by HMAC-SHA256 over a fresh random challenge": [
        f"{WIRE}/token_test.cc::a_proof_is_the_hmac_sha256_of_what_was_said",
        f"{WIRE}/token_test.cc::challenges_are_fresh",
        f"{WIRE}/token_test.cc::a_proof_is_good_for_its_connection_only",
        f"{WIRE}/token_test.cc::a_server_that_cannot_prove_is_not_asked_anything",
    ],
    "their roles and both tasks' names": [
        f"{WIRE}/token_test.cc::a_proof_for_another_task_or_by_the_server_s_role_is_none"
    ],
    "Until then a connection may send frames of at most 4 KiB": [
        f"{WIRE}/hostile_test.cc::who_has_not_said_its_name_announces_no_large_frame"
    ],
    "gets no answer but the greeting's": [
        f"{WIRE}/hostile_test.cc::nothing_is_queued_for_who_has_not_finished_the_greeting",
        f"{WIRE}/token_test.cc::a_stranger_learns_neither_a_proof_nor_the_name_of_the_lane",
    ],
    "nothing from it reaches TensorFlow": [
        f"{WIRE}/token_test.cc::no_request_is_heard_before_the_proof"
    ],
    "Further ones wait in the kernel, and one that has sent nothing for half a second makes room": [
        f"{WIRE}/hostile_test.cc::a_flood_of_connections_that_say_nothing_shuts_nobody_out",
        f"{WIRE}/hostile_test.cc::"
        "all_who_greet_are_served_if_more_come_at_once_than_may_be_in_their_greeting",
    ],
    "A peer with another token or none is refused, with at most one line in the log": [
        f"{WIRE}/token_test.cc::another_token_or_none_fails_the_call_with_what_to_do_and_one_line"
    ],
    "fails with `FailedPrecondition` and says what to set": [
        f"{TOKEN}::test_a_step_with_a_task_that_has_another_token_or_none_fails_and_says_what_to_do"
    ],
    "if the kernel says that the peer is of the same user, and for reading only": [
        f"{WIRE}/memory_test.cc::a_process_of_another_user_is_turned_away_at_the_lane",
        f"{WIRE}/memory_test.cc::what_is_passed_to_peers_cannot_be_written_to",
    ],
    "A process that a task forks has a private view of that memory": [
        f"{WIRE}/fork_test.cc::"
        "what_a_forked_process_does_with_its_parent_s_blocks_does_not_reach_the_parent"
    ],
    "It needs OpenSSL's `libcrypto`": [
        f"{WIRE}/openssl_test.cc::"
        "a_token_where_openssl_is_missing_names_the_library_and_the_packages"
    ],
    # Hostile input.
    "A wrong length in a header allocates nothing.": [
        f"{WIRE}/hostile_test.cc::lengths_that_lie_cost_no_memory",
        f"{WIRE}/hostile_test.cc::an_error_that_announces_much_makes_no_room_ahead_of_its_bytes",
    ],
    "A greeting has ten seconds in all.": [
        f"{WIRE}/liveness_test.cc::a_greeting_that_comes_a_byte_at_a_time_ends_by_its_deadline"
    ],
    "A stalled frame ends when its peer has been silent for 30 s.": [
        f"{WIRE}/liveness_test.cc::a_request_that_stalls_in_the_middle_is_let_go"
    ],
    "A peer that sends one byte each second can hold a frame open": [
        f"{WIRE}/hostile_test.cc::a_sender_of_one_byte_at_a_time_is_served"
    ],
    "Requests that are not answered may hold 1 GiB together": [
        f"{WIRE}/flow_test.cc::the_unanswered_requests_of_all_connections_have_one_limit",
        f"{WIRE}/flow_test.cc::requests_beyond_what_may_be_unanswered_are_refused_and_not_handled",
    ],
    "Malformed sessions, and tensors of another type or shape than the graph's": [
        f"{WIRE}/hostile_test.cc::ten_thousand_damaged_sessions_leave_the_server_and_its_peers_unharmed",
        "tests/integration/semantics/test_lies.py::"
        "test_a_tensor_that_is_not_what_the_graph_says_fails_its_step_and_no_other",
    ],
    # TLS.
    "ends one on which a byte was altered": [
        f"{WIRE}/tls_test.cc::what_was_altered_ends_the_connection_instead_of_reaching_anybody",
        f"{WIRE}/tls_test.cc::what_passes_cannot_be_read",
    ],
    "changes every 128 GiB": [f"{WIRE}/tls_test.cc::keys_change_and_a_full_socket_loses_nothing"],
    "A task without TLS and one with it refuse each other and say so": [
        f"{WIRE}/tls_test.cc::who_does_not_use_it_is_told_and_so_is_the_log"
    ],
    "a client refuses every certificate and sends nothing after it": [
        f"{WIRE}/tls_test.cc::a_server_that_shows_a_certificate_instead_of_the_key_hears_nothing"
    ],
    "a proof that is relayed into another session is refused": [
        f"{WIRE}/tls_test.cc::a_proof_that_is_relayed_from_one_tls_session_to_another_is_refused"
    ],
    # TensorFlow's gRPC port, and other doors.
    "a NetworkPolicy that admits only the job's own pods": [
        "tests/unit/k8s/test_render.py::test_only_the_jobs_own_pods_are_admitted"
    ],
    "only the keeper of a ps has a token of Kubernetes": [
        "tests/unit/k8s/test_render.py::"
        "test_only_the_container_that_looks_after_the_job_gets_kubernetes_token"
    ],
    "is off unless asked for": [
        "tests/unit/test_metrics.py::test_without_a_port_or_a_socket_nothing_is_served"
    ],
    "listens on loopback unless `--metrics-host` says otherwise": [
        "tests/unit/test_metrics.py::test_an_endpoint_is_on_loopback_unless_told"
    ],
    "It serves 16 clients at a time, and a further one ends the oldest.": [
        "tests/unit/test_metrics.py::"
        "test_clients_that_send_nothing_cost_few_threads_and_keep_no_one_out"
    ],
    "`k8s submit --metrics-from NAMESPACE` admits the pods of a namespace": [
        "tests/unit/k8s/test_render.py::test_metrics_are_for_the_namespace_that_is_named"
    ],
    "belong to this user, to root or to the owner of the installed package": [
        "tests/unit/test_plugin_build.py::test_what_belongs_to_another_user_is_not_loaded"
    ],
    "and not every user can write them": [
        "tests/unit/test_plugin_build.py::test_what_every_user_can_write_is_not_loaded"
    ],
    "an agent waits at its task's address": [
        "tests/unit/test_several_hosts_greeting.py::"
        "test_an_agent_listens_at_the_address_that_it_was_given"
    ],
    "every caller that proves to know the job token": [
        "tests/unit/test_several_hosts_greeting.py::"
        "test_a_peer_with_another_job_token_is_a_stranger"
    ],
}


@pytest.mark.docs
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_has_its_test(statement: str) -> None:
    page = " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").replace("*", "").split())
    assert statement in page
    for named in STATEMENTS[statement]:
        file, _, test = named.partition("::")
        begins = f"TEST({test})" if file.endswith(".cc") else f"def {test}("
        assert begins in (ROOT / file).read_text(encoding="utf-8")
