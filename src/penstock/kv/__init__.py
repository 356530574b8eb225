"""The attention state of a sequence: small, exact, and able to be rewound, copied, saved and restored."""
