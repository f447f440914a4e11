from crossknn.items.items import Items as Items
