"""What holds a server back: a run and the server's own metrics go in, ranked verdicts come out."""
