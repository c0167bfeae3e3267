"""Why latencies are what they are: findings with evidence, scope and next step."""
