"""From records to pictures. The only place that needs matplotlib."""
