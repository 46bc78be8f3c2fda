"""The loss scale, the steps that it skips, and the schedulers behind them."""
