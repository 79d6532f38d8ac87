"""SwanLab as a tracker: `run.trackers=[swanlab_tracker:Swanlab]`."""

import swanlab


class Swanlab:
    def on_run_start(self, run, event):
        swanlab.init(project="overlap-rl", experiment_name=run.path.name, config=run.cfg.to_dict(), reinit=True)

    def on_step(self, run, event):
        swanlab.log(dict(event.row), step=event.step)

    on_evaluate = on_step

    def on_run_end(self, run, event):
        swanlab.finish()
