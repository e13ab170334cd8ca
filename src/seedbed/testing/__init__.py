"""Contract suites and fakes that users run on their own environment, agent or transport."""
