"""One file a DVC stage; each is short and calls the library."""
