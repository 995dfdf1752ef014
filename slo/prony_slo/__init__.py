"""SLO files and the gate that judges runs against them."""
