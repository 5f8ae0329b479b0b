import pytest
import torch

from edlm.errors import UserError
from edlm.schedule import SCHEDULES, Linear, Polynomial, make_schedule, reveal_probability, uniform_times

T = torch.linspace(0.01, 0.99, 37, dtype=torch.float64)
every_schedule = pytest.mark.parametrize("name", SCHEDULES)


@every_schedule
def test_a_schedule_falls_from_one_to_zero(name):
    alpha = make_schedule(name).alpha(torch.linspace(0, 1, 101, dtype=torch.float64))
    assert alpha[0] == 1 and abs(alpha[-1]) < 1e-12
    assert (alpha.diff() < 0).all()


@every_schedule
def test_the_rate_is_the_derivative_by_autodiff(name):
    schedule, t = make_schedule(name), T.clone().requires_grad_()
    alpha = schedule.alpha(t)
    (slope,) = torch.autograd.grad(alpha.sum(), t)
    torch.testing.assert_close(schedule.rate(t), -slope / (1 - alpha))


@every_schedule
def test_time_inverts_alpha(name):
    schedule = make_schedule(name)
    torch.testing.assert_close(schedule.time(schedule.alpha(T)), T)


@every_schedule
def test_reveal_probabilities_of_two_steps_compose(name):
    schedule, (t, r, s) = make_schedule(name), torch.tensor([0.9, 0.5, 0.2], dtype=torch.float64)
    stay = (1 - reveal_probability(schedule, t, r)) * (1 - reveal_probability(schedule, r, s))
    torch.testing.assert_close(1 - stay, reveal_probability(schedule, t, s))


@every_schedule
def test_the_last_step_reveals_everything(name):
    assert reveal_probability(make_schedule(name), T, torch.zeros_like(T)).eq(1).all()


@every_schedule
def test_reveal_probabilities_do_not_depend_on_where_alpha_ends(name):
    schedule, t, s = make_schedule(name), T[1:], T[:-1]
    floor = 1e-3  # the public log-linear schedule stops at alpha(1) = 1e-3
    alpha_t, alpha_s = floor + (1 - floor) * schedule.alpha(t), floor + (1 - floor) * schedule.alpha(s)
    torch.testing.assert_close((alpha_s - alpha_t) / (1 - alpha_t), reveal_probability(schedule, t, s))


def test_the_grid_of_times_falls_from_one_to_zero_in_equal_steps():
    assert uniform_times(4).tolist() == [1, 0.75, 0.5, 0.25, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_schedule("cos"), "unknown schedule 'cos'; choose log-linear, linear, cosine or polynomial"),
        (lambda: Linear(level=0), "level of the linear schedule must be positive, got 0"),
        (lambda: Polynomial(exponent=-1), "exponent of the polynomial schedule must be positive, got -1"),
        (lambda: uniform_times(0), "steps must be at least 1, got 0"),
    ],
)
def test_bad_schedules_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
