"""Networks: convolutions, torsos, recurrent cores, frame stacks and the actor-critic that is made of them."""
