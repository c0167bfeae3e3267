"""From the nodes' disks to the tables of a run."""
