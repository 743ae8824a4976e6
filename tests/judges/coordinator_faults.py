"""TensorFlow's fault-tolerance tests of ClusterCoordinator, whose base its wheel carries."""

import tensorflow as tf
from tensorflow.python.distribute import multi_process_runner
from tensorflow.python.distribute.coordinator import fault_tolerance_test_base


class MultiWorker(fault_tolerance_test_base.BaseFaultToleranceTest, tf.test.TestCase):
    """Two workers and two ps."""

    def setUp(self) -> None:
        super().setUp(2, 2)


class SingleWorker(fault_tolerance_test_base.BaseFaultToleranceTest, tf.test.TestCase):
    """A worker and a ps."""

    def setUp(self) -> None:
        super().setUp(1, 1)


if __name__ == "__main__":
    multi_process_runner.test_main()
