"""Linear and kernel metric learning as scikit-learn estimators."""
