"""Code that Triton runs. It is data here: nothing of ours imports it, and it imports nothing of ours."""
