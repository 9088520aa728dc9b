"""Commands about this machine: doctor, harnesses, images."""
