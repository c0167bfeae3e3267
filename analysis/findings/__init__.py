"""Why latencies are what they are: findings by rules, with evidence, scope and next step; self-checks."""
