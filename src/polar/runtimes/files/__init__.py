"""Files of a session, touched on its behalf without following its links outside."""
