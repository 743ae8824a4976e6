"""Placement of variables on ps: the costs of variables, and the strategies.

Nothing here needs TensorFlow, but for `graphs`, which imports it in its functions.
What a training script uses is `tensorwire.tf.placement`.
"""
