"""How good predicted probabilities are: the scores, the methods that make them, and what ``arturo calibrate`` writes."""
