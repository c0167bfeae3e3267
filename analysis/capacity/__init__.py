"""The most load within promises: searched for seed by seed, with an interval over seeds and a load that is safe."""
