"""Several models under one load: which payload variants are whose, and which model each request asks."""
