"""What wraps any loss."""
