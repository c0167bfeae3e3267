"""What load: arrival processes, request mix, scenario files and the plan made from them."""
