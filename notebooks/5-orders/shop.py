"""Prices of the shop, and their taxes."""

VAT = {"tea": 0.07, "coffee": 0.07, "cocoa": 0.07, "mug": 0.19, "kettle": 0.19}


def gross(product, net):
    """Returns a price with the tax of its product."""
    return round(net * (1 + VAT[product]), 2)
