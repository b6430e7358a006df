# Yamame with its recipes.  CPU:  docker build -t yamame .
# CUDA:  docker build -t yamame --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN useradd --create-home learner
WORKDIR /opt/yamame
COPY pyproject.toml README.md LICENSE CHANGELOG.md CONTRIBUTING.md noxfile.py ./
COPY components components
COPY envs envs
COPY conf conf
COPY recipes recipes
COPY zoo zoo
RUN pip install --no-cache-dir torch==2.13.0 --index-url "$TORCH_INDEX" && pip install --no-cache-dir '.[train,video]'
USER learner
WORKDIR /home/learner
ENTRYPOINT ["yamame"]
CMD ["--help"]
