# docker build -t anonface .
# docker run --rm -v "$PWD:/photos" -v anonface:/cache anonface anonymize photo.jpg --key-file my.key
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends libgl1 libglib2.0-0 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml constraints.txt weights.toml README.md LICENSE ./
COPY anonface anonface
RUN pip install --no-cache-dir -c constraints.txt torch torchvision --index-url https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir -c constraints.txt .
ENV ANONFACE_CACHE=/cache
WORKDIR /photos
ENTRYPOINT ["anonface"]
