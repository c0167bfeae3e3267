"""Functions and draws that give the same bits on every CPU: what a schedule's digest rests on.

A library picks other code for exp or log on another CPU (numpy by AVX-512 and AVX2, the C library by FMA, BLAS by its
kernels), and the last digit moves. Here only what IEEE 754 fixes to the last bit is used: + - * / and square root,
rounding to whole numbers, comparisons, whole-number arithmetic on bit patterns, each as a numpy call of its own, so
that no compiler fuses a product with a sum; and `decimal`, which computes in whole numbers. No complex products
(numpy fuses those), no BLAS, no sums of a whole array (`cumsum` and `math.fsum` have one order), and of a generator
only `random` and `integers`. docs/arrivals.md lists what stands for what.
"""
