"""Code that Triton runs, and that the exports start from: it imports nothing of ours."""
