"""Zoo: convert many models, measure what came of it, and compare with other tools."""
