"""What a person watches: the values behind the dashboard and `polar top`."""
