"""What a process of ours is to the operating system: how it starts and ends, its priority, cores and folders."""
