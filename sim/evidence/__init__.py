"""What proves: recorded engines, measured servers, baselines, two releases, speed."""
