"""The hyperparameter search: what is searched (spaces), how (protocols), by whom (Optuna), and the outcome."""
