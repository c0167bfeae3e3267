"""Executions of instances whose batches overlap: cut by the events that a stream records, matched to the batches."""
