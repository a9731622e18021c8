"""pydensecrf's modules `densecrf`, `utils` and `eigen` under their own names.

Replace `import pydensecrf.densecrf as dcrf` by `import crfield.compat.pydensecrf.densecrf as dcrf`
and `from pydensecrf.utils import ...` by `from crfield.compat.pydensecrf.utils import ...`.
"""
