"""Which variable lives on which ps: what variables cost, and where each strategy puts them.

Nothing here needs TensorFlow, but for `graphs`, which imports it in its functions.
What a training script uses is `tensorwire.tf.placement`.
"""
