"""What a cluster would do before anyone pays for it: a job, a cluster and measured costs in,
steps a second and loads out.
"""
