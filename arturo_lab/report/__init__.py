"""Tables, statistics, figures and pages made from runs."""
