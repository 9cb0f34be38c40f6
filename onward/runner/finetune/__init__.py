"""Fine-tuning: new heads, low-rank adapters, layers with their own rates, frozen statistics."""
