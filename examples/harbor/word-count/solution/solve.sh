#!/bin/bash
sed -i 's/\.strip()\.split(" ")/.split()/' count.py
