"""A small record of `tensorwire plan calibrate` with round numbers as costs."""

CALIBRATION = {
    "command": "plan calibrate",
    "host": {"cpu": "a CPU", "cores": 2, "kernel": "6.1"},
    "tensorflow": "2.21.0",
    "version": "0.1.0",
    "time": "2026-01-31T12:00:00Z",
    "costs": {
        "grpc": {
            "step_cpu_s": 1e-3,
            "request_worker_cpu_s": 1e-4,
            "request_ps_cpu_s": 1e-4,
            "tensor_send_cpu_s": 4e-5,
            "tensor_receive_cpu_s": 4e-5,
            "byte_send_cpu_s": 5e-10,
            "byte_receive_cpu_s": 5e-10,
        }
    },
    "kernels": {"variable_ps_cpu_s": 3e-5, "byte_ps_cpu_s": 1e-9},
    "measured_workers": 2,
    "measured_ps": 2,
}
