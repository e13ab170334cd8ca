"""The server side of acting: actors join, and services act for them or take their unrolls."""
