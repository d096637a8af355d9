"""Networks with named feature taps."""
