"""The experiments. Each one returns plain records; `report` shows them."""
