"""What every trace format has in common: parts of a trace, options, columns' names, faults."""
