"""The files of a new project, as `polar init` writes them. No other module imports them."""
