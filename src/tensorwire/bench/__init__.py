"""The experiments. Each module of an experiment returns plain records; `report` shows them."""
