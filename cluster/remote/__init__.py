"""Ray and processes on other nodes: the only room that imports ray."""
