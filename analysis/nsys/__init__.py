"""Reports of Nsight Systems: scrubbed exports, their clock, their events as tables."""
