"""What `tensorwire check` looks at: this machine, and the tasks of a cluster."""
