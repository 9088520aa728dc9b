"""What a trainer needs of finished sessions: credit for their tokens, and how good a policy is."""
